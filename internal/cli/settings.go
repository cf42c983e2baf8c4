package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	sdk "dayfly.dev/dayfly/sdk/go"
)

// configMax bounds a configuration file, in bytes.
const configMax = 64 << 10

// settings are what the flags, the environment and the configuration file say. Empty means: the server of this machine.
type settings struct {
	url, key, data string
	keyFrom        string // where the key was found, or empty
	config         string // path of the configuration file
}

// configFile is what a configuration file may hold.
type configFile struct {
	URL    string `yaml:"url"`
	APIKey string `yaml:"api_key"`
}

func (a *app) settings() (settings, error) {
	s := settings{config: a.configPath(), data: either(a.flags.data, a.Env(sdk.EnvData), sdk.DefaultDataDir)}
	file, err := readConfig(s.config, a.flags.config != "")
	if err != nil {
		return s, err
	}
	given := either(a.flags.url, a.Env(sdk.EnvURL))
	s.url = either(given, file.URL)
	switch {
	case a.flags.key != "":
		s.key, s.keyFrom = a.flags.key, "--api-key"
	case a.Env(sdk.EnvAPIKey) != "":
		s.key, s.keyFrom = a.Env(sdk.EnvAPIKey), sdk.EnvAPIKey
	case file.APIKey != "" && (file.URL == "" || given == "" || given == file.URL): // the file's key is for the file's server
		s.key, s.keyFrom = file.APIKey, "api_key in "+s.config
	}
	return s, nil
}

func (a *app) configPath() string {
	if a.flags.config != "" {
		return a.flags.config
	}
	base := a.Env("XDG_CONFIG_HOME")
	if base == "" {
		home := a.Env("HOME")
		if home == "" {
			return ""
		}
		base = filepath.Join(home, ".config")
	}
	return filepath.Join(base, "dayfly", "config.yaml")
}

// readConfig reads a configuration file; one that nobody asked for may be missing. Its text is never repeated: it may hold a key.
func readConfig(path string, asked bool) (configFile, error) {
	var c configFile
	if path == "" {
		return c, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && !asked {
		return c, nil
	}
	if err != nil {
		return c, usagef("cannot read the configuration file: %v", err).withHint("check the path, or leave --config out")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, configMax))
	if err != nil {
		return c, usagef("cannot read the configuration file: %v", err).withHint("check the path, or leave --config out")
	}
	return parseConfig(path, b)
}

func parseConfig(path string, b []byte) (configFile, error) {
	var c configFile
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return configFile{}, usagef("the configuration file %s is not valid", path).
			withHint("it is YAML with the keys url and api_key, both text, and nothing else")
	}
	return c, nil
}

func either(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
