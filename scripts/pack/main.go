// Command pack makes the embedded helper out of a built program: it overwrites the blobs that are named (files that the program
// embeds and never uses here) with zeros, and compresses the rest. Before it comes a frame that decoders skip, with the hash of
// what is compressed.
//
//	go run ./scripts/pack PROGRAM PACKED [BLOB…]
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
)

// skipMagic begins a frame of zstd that decoders skip.
const skipMagic = 0x184D2A50

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: pack PROGRAM PACKED [BLOB...]")
		os.Exit(64)
	}
	if err := pack(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(program, packed string, blobs []string) error {
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	for _, name := range blobs {
		blob, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		at := bytes.Index(b, blob)
		if len(blob) == 0 || at < 0 {
			return fmt.Errorf("%s is not in %s", name, program)
		}
		clear(b[at : at+len(blob)])
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	out := binary.LittleEndian.AppendUint32(nil, skipMagic)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(sum)))
	return os.WriteFile(packed, w.EncodeAll(b, append(out, sum[:]...)), 0o644)
}
