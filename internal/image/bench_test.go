package image_test

import (
	"os"
	"testing"

	"dayfly.dev/dayfly/internal/image"
)

// BenchmarkImport imports the file that DAYFLY_BASE_IMAGE names.
func BenchmarkImport(b *testing.B) {
	file := os.Getenv("DAYFLY_BASE_IMAGE")
	if file == "" {
		b.Skip("DAYFLY_BASE_IMAGE names no image file")
	}
	s, err := image.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		f, err := os.Open(file)
		if err != nil {
			b.Fatal(err)
		}
		img, err := s.Import(b.Context(), "base", f, image.ImportOptions{})
		if err != nil {
			b.Fatal(err)
		}
		_ = f.Close()
		b.StopTimer()
		b.Logf("%+v", img)
		if err := s.Remove(b.Context(), img.ID); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
