package hostnet_test

import (
	"net"
	"testing"
	"time"
)

const forgetWait = 30 * time.Second // for the kernel to take closed connections off a count

// TestFlowLimit: one sandbox cannot fill the connection table of the host, and its neighbour notices nothing.
func TestFlowLimit(t *testing.T) {
	const most = 8
	w := newWorld(t)
	w.options.FlowsMax = most
	w.open()
	w.countPackets() // somebody listens
	a, b := w.sandbox(), w.sandbox()
	var open []net.Conn
	for range most {
		open = append(open, dialFrom(t, a))
	}
	if _, err := get(a.ns, internet); !refused(err) {
		t.Errorf("one connection over the limit: %v", err)
	}
	if got, err := get(b.ns, internet); err != nil || got == "" {
		t.Errorf("the neighbour: %q, %v", got, err)
	}
	// Short ones, one after the other, are no flood: the kernel forgets them, a few in each tick of its clock, without an event.
	deadline := time.Now().Add(forgetWait)
	for done := 0; done < 3*most; {
		_, err := get(b.ns, internet)
		if err == nil {
			done++
		} else if time.Now().After(deadline) {
			t.Fatalf("a sandbox with one connection at a time, after %d: %v", done, err)
		}
	}
	if _, err := open[0].Write([]byte("still here\n")); err != nil {
		t.Errorf("an open connection of the greedy one: %v", err)
	}
}

// dialFrom opens a connection to the public server that stays open until the test ends.
func dialFrom(t *testing.T, b box) (c net.Conn) {
	t.Helper()
	must(t, in(b.ns, func() (err error) {
		c, err = net.DialTimeout("udp4", internet+":9999", dialWait)
		if err == nil {
			_, err = c.Write([]byte("x"))
		}
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}
