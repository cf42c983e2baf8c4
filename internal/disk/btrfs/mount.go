package btrfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	mountTable = "/proc/self/mountinfo"
	superMagic = 0x9123683e
	tableLine  = 1 << 20 // bytes
)

// mounted is one line of the mount table.
type mounted struct {
	point  string
	kind   string
	source string
}

// mountAt gives the topmost mount on the directory, or ok false.
func mountAt(dir string) (m mounted, ok bool, err error) {
	f, err := os.Open(mountTable)
	if err != nil {
		return m, false, fmt.Errorf("read the mount table: %w", err)
	}
	defer f.Close()
	table, err := parseMounts(f)
	if err != nil {
		return m, false, fmt.Errorf("read the mount table: %w", err)
	}
	for _, line := range table {
		if line.point == dir {
			m, ok = line, true
		}
	}
	return m, ok, nil
}

// parseMounts reads the format of /proc/self/mountinfo; lines that make no sense are left out.
func parseMounts(r io.Reader) ([]mounted, error) {
	var table []mounted
	s := bufio.NewScanner(r)
	s.Buffer(nil, tableLine)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if ok && len(l) >= 6 && len(r) >= 2 {
			table = append(table, mounted{point: unescape(l[4]), kind: r[0], source: unescape(r[1])})
		}
	}
	return table, s.Err()
}

// unescape undoes the kernel's \ooo for white space and backslashes.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountDevice mounts the device on dir, so that nothing mounted below spreads to other mount namespaces.
func mountDevice(device, dir string, discard bool) error {
	err := unix.Mount(device, dir, "btrfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, discardOption(discard))
	if errors.Is(err, unix.EINVAL) && discard { // a device that cannot discard
		err = unix.Mount(device, dir, "btrfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s on %s: %w", device, dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s private: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
	}
	return nil
}

func discardOption(on bool) string {
	if on {
		return "discard=async"
	}
	return "nodiscard"
}

// isBtrfs tells whether dir is on btrfs.
func isBtrfs(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Type == superMagic, nil
}
