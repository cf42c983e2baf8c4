// Package load holds the tests of long and of too much use: thousands of lives and commands, and creates far beyond what fits.
// They watch the server from outside, by /proc and the audit. DAYFLY_LOAD=full runs them at full length.
//
// To add one, take the shared server (shared) or one of its own, read what it uses after a warm-up (usage), and compare (flat).
package load
