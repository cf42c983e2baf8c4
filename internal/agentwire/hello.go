package agentwire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"dayfly.dev/dayfly"
)

// The versions of the protocol that this code speaks. The two ends settle on the highest that both do.
const (
	versionMin = 1
	versionMax = 1
)

// helloMax is the longest hello in bytes. helloMagic begins it, so that a stranger on the socket is told apart at once.
const (
	helloMax   = 4 << 10
	helloMagic = "DFA1"
)

// hello is what each end says first. Fields that an end does not know are ignored here (and only here), so that a newer
// end may say more.
type hello struct {
	Min      int      `json:"min"`
	Max      int      `json:"max"`
	Features []string `json:"features,omitempty"` // of the agent, beyond the version
	Lane     bool     `json:"lane,omitempty"`     // of the node: the connection is a lane and no session
	AgeMS    int64    `json:"age_ms,omitempty"`   // of the node: how long ago the sandbox's lease began, at least; 0: not told
}

// writeHello sends h in one write.
func writeHello(w io.Writer, h hello) error {
	body, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode hello: %w", err)
	}
	b := append([]byte(helloMagic), 0, 0)
	binary.BigEndian.PutUint16(b[len(helloMagic):], uint16(len(body)))
	if _, err := w.Write(append(b, body...)); err != nil {
		return fmt.Errorf("send hello: %w", err)
	}
	return nil
}

// readHello reads exactly one hello and not a byte more.
func readHello(r io.Reader) (hello, error) {
	var head [len(helloMagic) + 2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	if string(head[:len(helloMagic)]) != helloMagic {
		return hello{}, fmt.Errorf("read hello: %w: not an agent's connection", errFrame)
	}
	size := binary.BigEndian.Uint16(head[len(helloMagic):])
	if size > helloMax {
		return hello{}, fmt.Errorf("read hello: %w: %d bytes", errFrame, size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, fmt.Errorf("read hello: %w", err)
	}
	var h hello
	if err := json.Unmarshal(body, &h); err != nil {
		return hello{}, fmt.Errorf("read hello: %w: %w", errFrame, err)
	}
	return h, nil
}

// settle gives the version that both ends speak.
func settle(theirs hello) (int, error) {
	version := min(versionMax, theirs.Max)
	if version < versionMin || version < theirs.Min {
		return 0, fmt.Errorf("no common protocol version: here %d to %d, there %d to %d", versionMin, versionMax, theirs.Min, theirs.Max)
	}
	return version, nil
}

// The features of agents beyond their version, oldest first. What needs one is not sent to an agent whose hello does not name
// it: such an agent, which decodes strictly, would not know what to do with it.
const (
	featureProcesses = "processes-2" // names, terminals, restarts, no timeout; sizes of terminals and ports waited for
	featureFiles     = "files-2"     // mkdir, move, chmod, search, find, watch
	featureStdin     = "stdin-2"     // input at an offset, and its count
	featureLanes     = "lanes-1"     // connections that are lanes
)

// features are those of an agent of this code.
func features() []string { return []string{featureProcesses, featureFiles, featureStdin, featureLanes} }

// needs is the feature that a request needs, or empty.
func (r request) needs() string {
	switch r.Op {
	case opResize, opAwaitPort:
		return featureProcesses
	case opMkdir, opMove, opChmod, opSearch, opFind, opWatch:
		return featureFiles
	case opStdinAt:
		return featureStdin
	}
	if s := r.Spec; s != nil && (s.Name != "" || s.Terminal != nil || s.Restart != "" || s.Restarts != 0) {
		return featureProcesses
	}
	return ""
}

// suit makes a request fit for an agent with the features, or tells that this cannot be.
func (r request) suit(known []string) (request, error) {
	if need := r.needs(); need != "" && !slices.Contains(known, need) {
		return r, older()
	}
	if s := r.Spec; s != nil && s.Timeout == dayfly.NoTimeout && !slices.Contains(known, featureProcesses) {
		spec := *s
		spec.Timeout = dayfly.ExecTimeoutMax // no sandbox lives longer
		r.Spec = &spec
	}
	return r, nil
}

// older is the answer to a request that the sandbox's agent is too old for.
func older() *dayfly.Error {
	return dayfly.Errorf(dayfly.CodeConflict, "the sandbox runs an older agent, which cannot do this").
		WithHint("what it could do before still works; create a new sandbox for this")
}
