package cli

import "strings"

// parseLabels reads --label k=v.
func parseLabels(given []string) (map[string]string, error) {
	labels := make(map[string]string, len(given))
	for _, s := range given {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, usagef("the label %q is not key=value", s).withHint("write --label team=web")
		}
		if strings.Contains(k, ":") {
			return nil, usagef("the label's key %q holds a colon", k).withHint("keys are 1 to 63 characters without ':'")
		}
		labels[k] = v
	}
	return labels, nil
}

// parseEnv reads --env K=V, and --env K, which takes the value from this command's own environment. Values are never
// repeated in an error.
func (a *app) parseEnv(given []string) (map[string]string, error) {
	env := make(map[string]string, len(given))
	for i, s := range given {
		k, v, ok := strings.Cut(s, "=")
		if k == "" {
			return nil, usagef("--env number %d has no name", i+1).withHint("write --env NAME=value")
		}
		if !ok {
			if v = a.Env(k); v == "" {
				return nil, usagef("--env %s has no value and is not set here either", k).withHint("write --env %s=value", k)
			}
		}
		env[k] = v
	}
	return env, nil
}

// copyPair is one --cp LOCAL:REMOTE.
type copyPair struct{ local, remote string }

func parseCopies(given []string) ([]copyPair, error) {
	var pairs []copyPair
	for _, s := range given {
		local, remote, ok := strings.Cut(s, ":")
		if !ok || local == "" || remote == "" {
			return nil, usagef("--cp %q is not LOCAL:REMOTE", s).withHint("write --cp ./src:work")
		}
		pairs = append(pairs, copyPair{local, remote})
	}
	return pairs, nil
}
