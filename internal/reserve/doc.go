// Package reserve hands out what a host has only once, so that two installations, or two processes of one, never collide:
// blocks of user ids and networks, slots within a block, and lock files. Reservations are files under a directory of /run,
// changed under a flock; nothing here talks to the kernel about ids or networks.
//
// To reserve one more kind of thing by block, derive it from Block.Number; blocks are never split.
package reserve
