// Package failpoint lets a test end, stop or delay a process of Dayfly at a named step, to prove that a crash there loses
// nothing. Only a build with the tag "failpoints" can do so: in any other, Hit is empty and nothing of this package is in the
// binary.
//
// A point is one line between two steps: failpoint.Hit("node.create.lease"). Its name is the package, the operation and the
// step that has just been done; "begin" is before the first one. To add one more, write that line; the campaign in test/faults
// finds it by itself. Points make no error: what the kernel or the disk can refuse is tested with the real thing.
package failpoint
