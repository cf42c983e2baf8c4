package warden

// The parser of lease files and its inverse.
var (
	DecodeLease = decodeLease
	EncodeLease = encodeLease
)
