package store

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"

	"dayfly.dev/dayfly"
)

// position is where a page ended: the keyset of its last row.
type position struct {
	created int64 // microseconds
	id      string
}

// The form of a cursor: version, microseconds, id, checksum; then base64. It is opaque to clients and holds no secret; the
// checksum is against accidents only.
const (
	cursorVersion = 1
	cursorHead    = 1 + 8
	cursorSum     = 4
	cursorIDMax   = 64 // bytes of an id
)

func (p position) cursor() string {
	b := make([]byte, 0, cursorHead+len(p.id)+cursorSum)
	b = append(b, cursorVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(p.created))
	b = append(b, p.id...)
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor accepts exactly what cursor makes.
func parseCursor(s string) (position, error) {
	wrong := dayfly.Errorf(dayfly.CodeInvalid, "the cursor is not one that this list gave").WithDetail("field", "cursor").
		WithHint("use next_cursor of the page before, unchanged, or none")
	if len(s) > base64.RawURLEncoding.EncodedLen(cursorHead+cursorIDMax+cursorSum) {
		return position{}, wrong
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) <= cursorHead+cursorSum || b[0] != cursorVersion {
		return position{}, wrong
	}
	body, sum := b[:len(b)-cursorSum], b[len(b)-cursorSum:]
	p := position{created: int64(binary.BigEndian.Uint64(body[1:cursorHead])), id: string(body[cursorHead:])}
	if crc32.ChecksumIEEE(body) != binary.BigEndian.Uint32(sum) || p.cursor() != s {
		return position{}, wrong
	}
	return p, nil
}
