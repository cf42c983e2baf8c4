// Package api is the public HTTP edge: it turns requests into calls of the control plane's use cases and their outcomes into
// JSON, raw bytes or event streams. It checks the form of everything that a client sends (types, ranges, unknown fields and
// parameters, sizes) and decides nothing: quotas, leases, machines are the Backend's. The contract is api/openapi.yaml; a test
// holds both together in both directions.
//
// To add a route, write a parser for its body or query, a function that serves it, one line in routes.go and its description in
// api/openapi.yaml.
package api
