// Package control decides: it holds the use cases of the product (Plane) and the reconcilers that keep records and hosts
// in step (Reaper, Sweeper). It knows nodes, stores and images only through interfaces, names no technology, speaks no
// HTTP, and never reads a clock: the node's clock comes in as a dayfly.Instant.
//
// To add a use case, add one file with one verb and a method on Plane; to add a background job, add a type with
// Reconcile(ctx, now) that is idempotent and bounded, and start it in Plane.Start.
package control
