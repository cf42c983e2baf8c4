package warden

// The parser of lease files and its inverse.
var (
	DecodeLease = decodeLease
	EncodeLease = encodeLease
)

// Decision is the parser of marks.
var Decision = decision
