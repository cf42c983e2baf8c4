package cli

import (
	"strings"
	"testing"
)

// FuzzConfig: any text is a configuration or a failure that repeats nothing of it.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{"url: http://a\napi_key: dfk_x\n", "api_key: [dfk_secret]", "url: &a [*a]", "\x00", "a: b: c", ""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig("FILE", text)
		if err != nil && (c != configFile{} || err.Error() != "the configuration file FILE is not valid") {
			t.Errorf("got %+v, %v", c, err)
		}
	})
}

// FuzzArguments: what follows --label, --env, --cp and cp is taken apart or refused, and put together again the same.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{"a=b", "=", "a:b", "sb00000000000000000001:/x:y", "./sb:1", "-", "\xff=\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if labels, err := parseLabels([]string{s}); err == nil {
			for k, v := range labels {
				if k+"="+v != s || strings.Contains(k, ":") {
					t.Errorf("label %q became %q, %q", s, k, v)
				}
			}
		}
		if pairs, err := parseCopies([]string{s}); err == nil && pairs[0].local+":"+pairs[0].remote != s {
			t.Errorf("copy %q became %q", s, pairs)
		}
		if p := parsePlace(s); p.id == "" && p.path != s || p.id != "" && p.id+":"+p.path != s {
			t.Errorf("place %q became %+v", s, p)
		}
		a := &app{Options: Options{Env: func(string) string { return "" }}}
		if _, err := a.parseEnv([]string{"=" + s}); err == nil || len(s) > 4 && strings.Contains(err.Error(), s) {
			t.Errorf("env: %v", err)
		}
	})
}
