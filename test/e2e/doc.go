// Package e2e holds the end-to-end tests: the real binary on this host, driven by its commands and its API, killed, stopped
// and looked at from outside. Each test takes away what it made and the servers prove it when they go.
//
// To add one, take the shared server (shared) unless the test hurts it, else one of its own (own).
package e2e
