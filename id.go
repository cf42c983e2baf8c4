package dayfly

import (
	"crypto/rand"
	"strings"
)

// IDPrefix is the two letters that an id begins with and that tell its kind.
type IDPrefix string

// The kinds of ids.
const (
	PrefixSandbox IDPrefix = "sb"
	PrefixProcess IDPrefix = "pr"
	PrefixImage   IDPrefix = "im"
	PrefixNode    IDPrefix = "no"
	PrefixAccount IDPrefix = "ac"
	PrefixKey     IDPrefix = "ke"
	PrefixRequest IDPrefix = "rq"
)

const (
	idRandom     = 20 // random characters after the prefix: 103 bits
	idAlphabet   = "abcdefghijklmnopqrstuvwxyz0123456789"
	installation = 6 // characters of an installation id
)

// NewID makes a random id of the given kind. Ids are host names too.
func NewID(prefix IDPrefix) string { return string(prefix) + randomText(idRandom) }

// NewInstallation makes a random installation id.
func NewInstallation() string { return randomText(installation) }

// ValidID tells whether s has the form of an id of the given kind.
func ValidID(prefix IDPrefix, s string) bool {
	rest, ok := strings.CutPrefix(s, string(prefix))
	return ok && len(rest) == idRandom && inAlphabet(rest)
}

// ValidInstallation tells whether s has the form of an installation id.
func ValidInstallation(s string) bool { return len(s) == installation && inAlphabet(s) }

func inAlphabet(s string) bool {
	for i := range len(s) {
		if !strings.Contains(idAlphabet, s[i:i+1]) {
			return false
		}
	}
	return true
}

// randomText draws n characters of idAlphabet without bias. crypto/rand never fails on a supported kernel.
func randomText(n int) string {
	const fair = 256 - 256%len(idAlphabet)
	out := make([]byte, 0, n)
	var buf [64]byte
	for len(out) < n {
		_, _ = rand.Read(buf[:])
		for _, b := range buf {
			if int(b) < fair && len(out) < n {
				out = append(out, idAlphabet[int(b)%len(idAlphabet)])
			}
		}
	}
	return string(out)
}
