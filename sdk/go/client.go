package dayfly

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// DefaultURL is where a server listens unless told otherwise.
const DefaultURL = "http://127.0.0.1:2424"

// Environment variables that New reads where Options leaves a field empty.
const (
	EnvURL    = "DAYFLY_URL"
	EnvAPIKey = "DAYFLY_API_KEY"
	EnvData   = "DAYFLY_DATA"
)

// Options say which server to talk to and how. The zero value means: the environment, then the server of this machine.
type Options struct {
	// URL of the server without /v1. Empty: DAYFLY_URL, then what a running server wrote into the data directory, then DefaultURL.
	URL string
	// APIKey is sent with each request. Empty: DAYFLY_API_KEY, then admin.key in the data directory. That file is read only
	// for a server on this machine, so that no other host is ever shown it.
	APIKey string
	// DataDir is the data directory of a server on this machine. Empty: DAYFLY_DATA, then DefaultDataDir.
	DataDir string
	// HTTPClient carries the requests, or nil for one that all clients of the process share. It is copied and then follows
	// no redirect. It must have no Timeout: commands and transfers last as long as their context allows.
	HTTPClient *http.Client
	// UserAgent is sent with each request. Empty: the SDK's own.
	UserAgent string
	// Getenv reads the environment, or is nil for os.Getenv.
	Getenv func(string) string
}

// Client talks to one server with one key. It is safe for concurrent use and needs no closing: all clients share one pool
// of connections unless Options.HTTPClient says otherwise.
type Client struct {
	base      *url.URL
	key       string
	keyReason string // why there is no key, or empty
	http      *http.Client
	userAgent string
}

// Limits of the shared connections.
const (
	idleConnsMax     = 64       // kept open per server
	connBuffer       = 64 << 10 // bytes each way of one connection: transfers take few turns
	idleConnTimeout  = 90 * time.Second
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// headTimeout bounds the wait for an answer's head after the request went out. The server sends a head after 15 s at the latest.
	headTimeout = 60 * time.Second
)

// New makes a client. It reads settings but sends nothing. A URL that cannot be used is CodeInvalid; a missing key shows
// only when a request needs one.
func New(o Options) (*Client, error) {
	getenv := o.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	local := localServer{dir: firstOf(o.DataDir, getenv(EnvData), DefaultDataDir)}
	address := firstOf(o.URL, getenv(EnvURL), local.url(), DefaultURL)
	base, err := parseURL(address)
	if err != nil {
		return nil, err
	}
	c := &Client{base: base, key: firstOf(o.APIKey, getenv(EnvAPIKey)), http: sharedHTTP(), userAgent: o.UserAgent}
	if c.userAgent == "" {
		c.userAgent = "dayfly-sdk-go"
	}
	if o.HTTPClient != nil {
		own := *o.HTTPClient
		own.CheckRedirect = refuseRedirect
		c.http = &own
	}
	if c.key == "" {
		c.key, c.keyReason = local.key(base)
	}
	if strings.ContainsFunc(c.key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, invalidf("the API key holds characters that no key has").withHint("a key is one word that begins with dfk_")
	}
	return c, nil
}

// URL is the server's address without /v1 and without a password.
func (c *Client) URL() string { return c.base.Redacted() }

func parseURL(address string) (*url.URL, error) {
	hint := "an address looks like " + DefaultURL + ", without /v1"
	u, err := url.Parse(address)
	if err != nil { // the parser's text repeats the address, which may hold a password
		return nil, invalidf("the server's address is not a URL").withHint(hint)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, invalidf("the server's address %q is not an http or https URL", u.Redacted()).withHint(hint)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, invalidf("the server's address %q has a query or fragment", u.Redacted()).withHint(hint)
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	u.RawPath = ""
	return u, nil
}

// sharedHTTP is one pool for the process, so that making many clients opens no more descriptors than making one.
var sharedHTTP = sync.OnceValue(func() *http.Client {
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		// A peer that vanished is noticed within half a minute, also while a stream is silent.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	// HTTP/1 only: a long stream has a connection of its own and starves no other call.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Client{
		CheckRedirect: refuseRedirect,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           dialer.DialContext,
			Protocols:             protocols,
			MaxIdleConns:          idleConnsMax,
			MaxIdleConnsPerHost:   idleConnsMax,
			IdleConnTimeout:       idleConnTimeout,
			ReadBufferSize:        connBuffer,
			WriteBufferSize:       connBuffer,
			TLSHandshakeTimeout:   handshakeTimeout,
			ResponseHeaderTimeout: headTimeout,
			DisableCompression:    true, // bytes arrive as they were sent
		},
	}
})

// refuseRedirect keeps the key from being sent anywhere but to the address that was given.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func invalidf(format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, args...)}
}
