package dayfly

import "time"

// ImageBase is the name of the image that a sandbox gets unless it asks for another.
const ImageBase = "base"

// Image is an unpacked root file system that sandboxes start from. It never changes; a name can be given to a newer one.
type Image struct {
	ID        string
	Name      string
	Digest    string // sha256:… of the imported file
	SizeBytes int64  // unpacked
	Files     int64
	User      User
	Workdir   string // where commands run unless they say otherwise; the user's home by default
	Env       map[string]string
	CreatedAt time.Time
}
