// Package dayfly holds the nouns of the product: sandboxes, leases, processes, files, images, accounts, and the seams
// (Driver, Pool, Store) behind which a technology stands. It imports the standard library only and does no I/O, so every
// other package may depend on it and it depends on none.
//
// To add a noun, add one file named after it; to add a technology, implement the seam in a package below internal/ and
// pass its conformance suite (drivertest, disktest, storetest).
package dayfly
