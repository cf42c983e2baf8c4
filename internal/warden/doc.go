// Package warden is the host's lease guarantee: one small file per sandbox that says when it ends, the protocol by which
// enforcers end it and extends race them, the warden (the program that enforces when everything else is dead), and the
// node's hold on that program.
//
// It knows control groups and files, nothing of drivers, networks, disks, accounts or the API: what a dead machine leaves
// behind is the node's to clear. It never decides that a machine without a lease must go.
//
// In the data directory:
//
//	leases/<id>                    the lease of a sandbox; replaced by rename, never written in place
//	leases/<id>.ending.<enforcer>  an enforcer looks at it ("") or has begun to kill ("killing")
//	leases/<id>.end                when and why it ended, by whoever saw it first
//	warden/lock                    flocked by the warden for life; holds its pid
//	warden/heartbeat               rewritten each second
//	warden/handover                asks the warden to make room for a newer one
//	server.lock                    flocked by the server, taken with reserve.Lock
//
// Nothing is synced: no machine survives a loss of power. To add another enforcer, give it a name of its own (docs/adr/0002)
// and call Enforcer.End.
package warden
