// Package measure takes the figures of `dayfly bench`: what sandboxes of each isolation cost on this machine, beside the floor,
// which is the same program on the bare host in the same run. Each round does everything once, so that other work moves the
// milliseconds of all alike: read the ratios. It sees the server only through sdk/go, starts none, and destroys everything it
// made. The figures of the repository's own results are bench's, which measures a server of its own.
//
// To add a figure that belongs to every round, give it an id, a text and a step in rounds.go; to add a part, list it in Parts.
package measure
