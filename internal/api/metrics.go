package api

import (
	"net/netip"

	"dayfly.dev/dayfly"
)

// proxied are headers that a proxy on this machine sets for a client that may be anywhere.
var proxied = []string{"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"}

// showMetrics answers clients of this machine, and admins.
func showMetrics(c *call, _ struct{}) error {
	if len(c.r.Header.Values("Authorization")) > 0 || !c.fromHere() {
		if err := c.authenticate(); err != nil {
			return err
		}
		if !c.who.Key.Admin {
			return dayfly.Errorf(dayfly.CodeForbidden, "the metrics are for admins").WithHint("use an admin key, or ask on the server's own machine without one")
		}
	}
	if c.metrics == nil {
		return dayfly.Errorf(dayfly.CodeNotFound, "this server keeps no metrics")
	}
	c.w.Header().Set("Cache-Control", "no-store")
	c.metrics.ServeHTTP(c.w, c.r)
	return nil
}

// fromHere tells whether the client is a program on this machine and no proxy for another one.
func (c *call) fromHere() bool {
	for _, name := range proxied {
		if len(c.r.Header.Values(name)) > 0 {
			return false
		}
	}
	from, err := netip.ParseAddrPort(c.r.RemoteAddr)
	return err == nil && from.Addr().Unmap().IsLoopback()
}
