package cli

import (
	"bytes"
	"strings"
)

const (
	detachKeysDefault = "ctrl-p,ctrl-q"
	detachKeysNone    = "none"
	detachKeysMax     = 8 // keys of a sequence
)

// detachKeys finds a sequence of keys in what is typed. What may be the start of it is held back.
type detachKeys struct {
	sequence []byte // empty: nothing detaches
	held     int    // bytes of the sequence that were typed
}

// parseDetachKeys reads --detach-keys: keys with commas between them, each one character or ctrl- and one of a–z @ [ \ ] ^ _.
func parseDetachKeys(text string) (*detachKeys, error) {
	k := &detachKeys{}
	if text == detachKeysNone {
		return k, nil
	}
	for _, name := range strings.Split(text, ",") {
		key, err := parseKey(name)
		if err != nil {
			return nil, err
		}
		k.sequence = append(k.sequence, key)
	}
	if len(k.sequence) > detachKeysMax {
		return nil, usagef("--detach-keys has more than %d keys", detachKeysMax)
	}
	return k, nil
}

func parseKey(name string) (byte, error) {
	letter, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
	switch {
	case !ctrl && len(name) == 1 && name[0] > ' ' && name[0] < 0x7f:
		return name[0], nil
	case ctrl && len(letter) == 1 && letter[0] >= 'a' && letter[0] <= 'z':
		return letter[0] - 'a' + 1, nil
	case ctrl && len(letter) == 1 && strings.Contains(`@[\]^_`, letter):
		return letter[0] - '@', nil
	}
	return 0, usagef("%q in --detach-keys is no key", name).
		withHint("keys are one character or like ctrl-p, with commas between them; %q switches detaching off", detachKeysNone)
}

// typed takes what was typed and gives what is to be passed on, and whether the sequence is complete: the rest is dropped then.
func (k *detachKeys) typed(p []byte) (pass []byte, detach bool) {
	if len(k.sequence) == 0 {
		return p, false
	}
	for _, b := range p {
		for k.held > 0 && b != k.sequence[k.held] {
			pass = append(pass, k.fallBack()...)
		}
		if b != k.sequence[k.held] {
			pass = append(pass, b)
			continue
		}
		if k.held++; k.held == len(k.sequence) {
			k.held = 0
			return pass, true
		}
	}
	return pass, false
}

// fallBack gives up the start of what is held, as far as the rest is still the start of a sequence.
func (k *detachKeys) fallBack() []byte {
	was := k.sequence[:k.held]
	for n := k.held - 1; n >= 0; n-- {
		if bytes.HasPrefix(k.sequence, was[len(was)-n:]) {
			k.held = n
			return was[:len(was)-n]
		}
	}
	return nil // not reached: n = 0 always fits
}

// flush gives out what is held: nothing more of the sequence came in time.
func (k *detachKeys) flush() []byte {
	p := k.sequence[:k.held]
	k.held = 0
	return p
}
