// Package arch holds tests of the repository itself: imports point down only, files stay under the wall, every package says
// what it is for. It has no code of its own. To add a package, add it to its layer in arch_test.go.
package arch
