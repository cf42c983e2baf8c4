// Package store keeps the records in SQL: it is dayfly.Store on SQLite. It decides nothing but what one transaction must
// decide (quota, uniqueness, idempotency, compare and swap) and it never reads a clock.
//
// Every query is one text with $1 placeholders, in the subset that SQLite and PostgreSQL share; what differs sits in
// dialect.go. A write runs alone on the one writing session, a read on one of a few reading ones, and a session keeps its
// prepared statements. Waiting for a session obeys the caller's context; a transaction that has begun is short and runs
// to its end, so that nobody needs to ask whether it was committed.
//
// To add a query, add a constant beside the method that needs it. To change the schema, add the next file to
// migrations/sqlite; files that were released never change. To add PostgreSQL, add migrations/postgres and a dialect, and
// run storetest on it.
package store
