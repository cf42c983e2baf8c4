package dayfly

import "unicode/utf8"

// texts are values by the name of their field.
type texts map[string][]string

// checkText refuses what JSON cannot carry: bytes that are not UTF-8 would arrive changed. It never repeats a value, which
// may be secret.
func checkText(fields texts, maps ...map[string]string) error {
	for field, values := range fields {
		for _, v := range values {
			if !utf8.ValidString(v) {
				return notText(field)
			}
		}
	}
	for _, m := range maps {
		for k, v := range m {
			if !utf8.ValidString(k) {
				return notText("a name in a map")
			}
			if !utf8.ValidString(v) {
				return notText("the value of " + k)
			}
		}
	}
	return nil
}

// putPath sets the path of a file in a body: as text, or where it is not UTF-8 as exact bytes.
func putPath(body map[string]any, name, path string) {
	if utf8.ValidString(path) {
		body[name] = path
		return
	}
	body[name+"_b64"] = []byte(path)
}

func notText(what string) *Error {
	return invalidf("%s is not valid UTF-8 and would not arrive unchanged", what).withHint("send bytes as a file or on standard input")
}
