package agent

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

const portTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0 0 0 0 0
`

func TestPortTable(t *testing.T) {
	for _, size := range []int{portLineMax + 1, portTableChunk} {
		var s portSet
		if err := s.addTable(bytes.NewReader([]byte(portTable)), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		for port, want := range map[uint16]bool{8080: true, 8081: false, 80: true, 0: false} {
			if s.has(port) != want {
				t.Errorf("port %d: %v", port, !want)
			}
		}
	}
}

// TestPortTables: what a kernel that cannot be asked lists is what one that can answers.
func TestPortTables(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "127.0.0.9:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Skip(err)
		}
		defer l.Close()
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		for _, blind := range []bool{false, true} {
			e := portEyes{blind: blind}
			defer e.close()
			open, err := e.look()
			if err != nil || !open.has(port) || e.blind != blind {
				t.Errorf("%s, blind %v: not seen, %v", address, blind, err)
			}
		}
		_ = l.Close()
		var e portEyes
		defer e.close()
		if open, err := e.look(); err != nil || open.has(port) {
			t.Errorf("%s: seen after its end, %v", address, err)
		}
	}
}

func FuzzPortTable(f *testing.F) {
	f.Add([]byte(portTable))
	f.Add(bytes.Repeat([]byte("x"), 3*portLineMax))
	f.Add([]byte("0: :FFFF x 0A\n0: 0:-001 x 0A\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var whole, pieces portSet
		_ = whole.addTable(bytes.NewReader(in), make([]byte, portTableChunk+len(in)))
		if err := pieces.addTable(bytes.NewReader(in), make([]byte, portLineMax+1)); err != nil {
			t.Fatal(err)
		}
		longest := 0
		for line := range bytes.Lines(in) {
			longest = max(longest, len(line))
		}
		if longest < portLineMax && whole != pieces {
			t.Fatal("the table depends on how it is read")
		}
	})
}

func FuzzPortAnswer(f *testing.F) {
	message := func(kind uint16, body []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(netlinkHeader+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		return append(append(b, make([]byte, netlinkHeader-len(b))...), body...)
	}
	listener := make([]byte, diagAnswer)
	listener[diagStateAt] = tcpListen
	binary.BigEndian.PutUint16(listener[diagPortAt:], 8080)
	f.Add(append(message(diagByFamily, listener), message(unix.NLMSG_DONE, make([]byte, 4))...))
	f.Add(message(unix.NLMSG_ERROR, make([]byte, 4)))
	f.Add(message(diagByFamily, listener[:10]))
	f.Fuzz(func(t *testing.T, in []byte) {
		var s portSet
		done, err := s.addAnswer(in)
		if done && err != nil {
			t.Fatal("both done and failed")
		}
	})
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte("usage_usec 123\nuser_usec 100\n"))
	f.Add([]byte("nr_periods 0\nusage_usec -1\n"))
	f.Add([]byte("usage_usec 99999999999999999999\nusage_usec"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if cpu, ok := parseCPU(in); ok && cpu < 0 {
			t.Fatalf("%q is %s", in, cpu)
		}
	})
}
