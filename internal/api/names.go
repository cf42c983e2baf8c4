package api

import (
	"strings"
	"unicode/utf8"

	"dayfly.dev/dayfly"
)

// Limits of what clients name.
const (
	nameMax       = 63
	labelsMax     = 32
	labelKeyMax   = 63  // characters
	labelValueMax = 255 // characters
	imageNameMax  = 128
	envMax        = 10_000 // variables
)

// nameProblem tells what is wrong with the name of a sandbox or an account, or nothing.
func nameProblem(s string) string {
	if n := len(s); n < 1 || n > nameMax || !isAlphanumeric(s[0]) || strings.Trim(s, nameCharacters) != "" {
		return "must be 1 to 63 of the characters a–z A–Z 0–9 . _ - and begin with a letter or digit"
	}
	return ""
}

// processNameProblem tells what is wrong with the name of a process, or nothing.
func processNameProblem(s string) string {
	if n := len(s); n < 1 || n > dayfly.ProcessNameMax || strings.Trim(s, nameCharacters) != "" {
		return "must be 1 to 63 of the characters a–z A–Z 0–9 . _ -"
	}
	return ""
}

// imageNameProblem tells what is wrong with the name of an image, or nothing.
func imageNameProblem(s string) string {
	if n := len(s); n < 1 || n > imageNameMax || !isAlphanumeric(s[0]) || strings.Trim(s, nameCharacters+":") != "" {
		return "must be 1 to 128 of the characters a–z A–Z 0–9 . _ - : and begin with a letter or digit"
	}
	return ""
}

const nameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

func isAlphanumeric(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

// labelProblem tells what is wrong with a label, or nothing.
func labelProblem(key, value string) string {
	switch n := utf8.RuneCountInString(key); {
	case n < 1 || n > labelKeyMax:
		return "the key of a label must have 1 to 63 characters"
	case strings.ContainsAny(key, ":\x00"):
		return "the key of a label must not hold ':' or NUL"
	case utf8.RuneCountInString(value) > labelValueMax:
		return "the value of a label must have at most 255 characters"
	case !utf8.ValidString(key) || !utf8.ValidString(value) || strings.ContainsRune(value, 0):
		return "a label must be UTF-8 without NUL"
	}
	return ""
}

// envProblem tells what is wrong with an environment variable, or nothing. It never repeats the value.
func envProblem(key, value string) string {
	switch {
	case key == "":
		return "the name of a variable must not be empty"
	case strings.ContainsAny(key, "=\x00"):
		return "the name of a variable must not hold '=' or NUL"
	case strings.ContainsRune(value, 0):
		return "must not hold a NUL character"
	}
	return ""
}

// pathProblem tells what is wrong with a path inside a sandbox, or nothing.
func pathProblem(s string) string {
	switch {
	case s == "":
		return "must not be empty"
	case strings.ContainsRune(s, 0):
		return "must not hold a NUL byte"
	case len(s) > pathMaxBytes:
		return "must have at most 4096 bytes"
	}
	return ""
}
