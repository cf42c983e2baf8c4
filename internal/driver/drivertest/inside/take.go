package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	takeMax        = 4096     // of one thing that the kernel counts
	connectionMax  = 64 << 20 // bytes sent on one connection
	connectSeconds = 1
)

// take takes as many as it gets of something that the kernel counts for each user, prints how many, and stays.
func take(a []string) error {
	one := map[string]func(i int) error{
		"inotify": func(int) error { _, err := unix.InotifyInit1(unix.IN_CLOEXEC); return err },
		"pty": func(int) error {
			_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			return err
		},
		"mqueue": func(i int) error { return openQueue("taken-" + strconv.Itoa(i)) },
	}[a[0]]
	if one == nil {
		return fmt.Errorf("cannot take %s", a[0])
	}
	taken := 0
	for taken < takeMax && one(taken) == nil {
		taken++
	}
	fmt.Println("took", taken)
	return hold(nil)
}

// openQueue makes a POSIX message queue of the default size and leaves it open.
func openQueue(name string) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// queued sends on so many loopback connections what nobody reads, and prints how many MiB the kernel took. With a second
// argument it stays.
func queued(a []string) error {
	connections, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	sent, block := 0, make([]byte, 64<<10)
	for range connections {
		n, err := fillConnection(l, block)
		sent += n
		if err != nil {
			break
		}
	}
	fmt.Println(sent >> 20)
	if len(a) > 1 {
		return hold(nil)
	}
	return nil
}

// fillConnection opens a connection, sends on both ends until they take no more, and leaves it open.
func fillConnection(l net.Listener, block []byte) (sent int, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	// A kernel that has no memory for more lets the connection wait.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: connectSeconds}); err != nil {
		return 0, err
	}
	to := &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	if err := unix.Connect(fd, to); err != nil {
		return 0, err
	}
	for {
		n, err := unix.SendmsgN(fd, block, nil, nil, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
			return sent, nil
		}
		if err != nil {
			return sent, err
		}
		if sent += n; sent > connectionMax {
			return sent, nil
		}
	}
}

// fill writes zeros to a file until it cannot, and prints how many MiB it wrote.
func fill(a []string) error {
	f, err := os.Create(a[0])
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for written := 0; ; written++ {
		if _, err := f.Write(block); err != nil {
			fmt.Println(written)
			return nil
		}
	}
}

// segments makes System V shared memory of one MiB a segment, touches it, and leaves it behind, until it cannot.
func segments([]string) error {
	for made := 0; ; made++ {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 1<<20, unix.IPC_CREAT|0o600)
		if err != nil {
			fmt.Println(made)
			return nil
		}
		b, err := unix.SysvShmAttach(id, 0, 0)
		if err != nil {
			return err
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		if err := unix.SysvShmDetach(b); err != nil {
			return err
		}
	}
}
