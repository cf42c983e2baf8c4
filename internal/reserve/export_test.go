package reserve

// DecodeBlock runs the parser of block files.
func DecodeBlock(b []byte) error {
	_, err := decodeBlock(b)
	return err
}
