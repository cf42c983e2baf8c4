// Package node runs machines on one host: it makes, renews, recovers and destroys them (Manager), holds each one's life
// (Box), and finds what is really on the host (Survey). It names no isolation, disk or network technology: those come in
// as dayfly.Driver, dayfly.Pool and Network. It keeps no database: what it must remember over a restart is in one state
// file per sandbox, and the host's truth wins over every record.
//
// To keep one more kind of host object per sandbox, add its making with its undo to create.go, its removal to destroy.go,
// its listing to survey.go, and a residue check to the driver suite.
package node
