// Package image keeps unpacked root file systems on disk: it imports them from tar files, which it takes to be hostile, and
// hands out their directories to be used as the lower layer of machines. Ids on disk are native: what the tar says is what
// is stored. It does not decide whether an image is in use, and it keeps no record elsewhere: each image describes itself in
// a file beside its root, so a lost database loses no image.
//
// To read one more archive or compression format, add its magic to decompress in compress.go.
package image
