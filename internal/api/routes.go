package api

import (
	"net/http"
	"slices"
)

// bodyKind says what body a route takes.
type bodyKind string

// The kinds of bodies.
const (
	bodyNone bodyKind = "none"
	bodyJSON bodyKind = "json"
	bodyRaw  bodyKind = "raw"
)

// route is one method on one path.
type route struct {
	method string
	path   string // a pattern of net/http
	open   bool   // needs no key
	endpoint
}

// endpoint is how a route is served, with the names that its parser knows.
type endpoint struct {
	body   bodyKind
	fields []string // of a JSON body, nested ones with a dot
	params []string // of the query
	serve  func(c *call) error
}

const (
	sandboxPath = "/v1/sandboxes/{id}"
	processPath = sandboxPath + "/processes/{pid}"
	filesPath   = sandboxPath + "/files"
)

// routes is the whole API.
func routes() []route {
	return []route{
		{method: "GET", path: "/healthz", open: true, endpoint: queryIn(noQuery, health)},
		{method: "GET", path: "/readyz", open: true, endpoint: queryIn(noQuery, ready)},
		{method: "GET", path: "/metrics", open: true, endpoint: queryIn(noQuery, showMetrics)},

		{method: "POST", path: "/v1/sandboxes", endpoint: jsonIn(parseCreate, createSandbox)},
		{method: "GET", path: "/v1/sandboxes", endpoint: queryIn(parseFilter, listSandboxes)},
		{method: "GET", path: sandboxPath, endpoint: queryIn(noQuery, showSandbox)},
		{method: "PATCH", path: sandboxPath, endpoint: jsonIn(parseRelabel, labelSandbox)},
		{method: "DELETE", path: sandboxPath, endpoint: queryIn(noQuery, deleteSandbox)},
		{method: "POST", path: sandboxPath + "/stop", endpoint: jsonIn(noFields, stopSandbox)},
		{method: "POST", path: sandboxPath + "/extend", endpoint: jsonIn(parseExtend, extendSandbox)},
		{method: "POST", path: sandboxPath + "/pause", endpoint: jsonIn(noFields, pauseSandbox)},
		{method: "POST", path: sandboxPath + "/resume", endpoint: jsonIn(noFields, resumeSandbox)},

		{method: "GET", path: sandboxPath + "/events", endpoint: queryIn(parseEvents, sandboxEvents)},

		{method: "POST", path: sandboxPath + "/exec", endpoint: jsonIn(parseExec, exec)},
		{method: "POST", path: sandboxPath + "/processes", endpoint: jsonIn(parseLaunch, launch)},
		{method: "GET", path: sandboxPath + "/processes", endpoint: queryIn(parseProcesses, listProcesses)},
		{method: "GET", path: processPath, endpoint: queryIn(noQuery, showProcess)},
		{method: "GET", path: processPath + "/output", endpoint: queryIn(parseOutput, followOutput)},
		{method: "GET", path: processPath + "/wait", endpoint: queryIn(parseAwait, awaitProcess)},
		{method: "GET", path: processPath + "/attach", endpoint: queryIn(parseAttach, attach)},
		{method: "POST", path: processPath + "/resize", endpoint: jsonIn(parseSize, resizeProcess)},
		{method: "POST", path: processPath + "/signal", endpoint: jsonIn(parseSignal, signalProcess)},
		{method: "POST", path: processPath + "/stdin", endpoint: rawIn(parseStdin, writeStdin)},

		{method: "GET", path: sandboxPath + "/ports/{port}/wait", endpoint: queryIn(parseAwait, awaitPort)},

		{method: "GET", path: filesPath, endpoint: queryIn(parseFiles, getFiles)},
		{method: "PUT", path: filesPath, endpoint: jsonIn(parsePutFile, putFile)},
		{method: "DELETE", path: filesPath, endpoint: queryIn(parseRemoveFile, removeFile)},
		{method: "GET", path: filesPath + "/content", endpoint: queryIn(parsePath, readContent)},
		{method: "HEAD", path: filesPath + "/content", endpoint: queryIn(parsePath, readContent)},
		{method: "PUT", path: filesPath + "/content", endpoint: rawIn(parseWrite, writeContent)},
		{method: "GET", path: filesPath + "/archive", endpoint: queryIn(parseArchive, readArchive)},
		{method: "PUT", path: filesPath + "/archive", endpoint: rawIn(parseArchive, writeArchive)},

		{method: "GET", path: filesPath + "/stat", endpoint: queryIn(parsePath, statFile)},
		{method: "POST", path: filesPath + "/mkdir", endpoint: jsonIn(parseMkdir, mkdir)},
		{method: "POST", path: filesPath + "/move", endpoint: jsonIn(parseMove, moveFile)},
		{method: "POST", path: filesPath + "/chmod", endpoint: jsonIn(parseChmod, chmod)},
		{method: "GET", path: filesPath + "/watch", endpoint: queryIn(parseWatch, watchFiles)},
		{method: "POST", path: filesPath + "/search", endpoint: jsonIn(parseSearch, search)},
		{method: "POST", path: filesPath + "/find", endpoint: jsonIn(parseFind, find)},

		{method: "POST", path: "/v1/keys", endpoint: jsonIn(parseNewKey, createKey)},
		{method: "GET", path: "/v1/keys", endpoint: queryIn(parsePaging, listKeys)},
		{method: "DELETE", path: "/v1/keys/{id}", endpoint: queryIn(noQuery, removeKey)},
		{method: "GET", path: "/v1/accounts", endpoint: queryIn(parsePaging, listAccounts)},

		{method: "GET", path: "/v1/events", endpoint: queryIn(parseEvents, allEvents)},
		{method: "POST", path: "/v1/sweep", endpoint: jsonIn(noFields, sweep)},

		{method: "POST", path: "/v1/images", endpoint: rawIn(parseImport, importImage)},
		{method: "GET", path: "/v1/images", endpoint: queryIn(parsePaging, listImages)},
		{method: "GET", path: "/v1/images/{ref}", endpoint: queryIn(noQuery, showImage)},
		{method: "DELETE", path: "/v1/images/{ref}", endpoint: queryIn(noQuery, removeImage)},
	}
}

// byPath groups routes by path, so that a wrong method is told from an unknown path.
func byPath(all []route) map[string][]route {
	paths := map[string][]route{}
	for _, rt := range all {
		paths[rt.path] = append(paths[rt.path], rt)
	}
	for _, methods := range paths {
		slices.SortFunc(methods, func(a, b route) int {
			if a.method < b.method {
				return -1
			}
			return 1
		})
	}
	return paths
}

// jsonIn serves requests with a JSON body and no query.
func jsonIn[T any](parse func(*fields) T, serve func(*call, T) error) endpoint {
	return endpoint{body: bodyJSON, fields: knownFields(parse), serve: func(c *call) error {
		in, err := readJSON(c, parse)
		if err != nil {
			return err
		}
		return serve(c, in)
	}}
}

// queryIn serves requests with a query and no body.
func queryIn[T any](parse func(*query) T, serve func(*call, T) error) endpoint {
	return endpoint{body: bodyNone, params: knownParams(parse), serve: func(c *call) error {
		in, err := readQuery(c.r.URL.RawQuery, parse)
		if err != nil {
			return err
		}
		if err := c.refuseBody(); err != nil {
			return err
		}
		return serve(c, in)
	}}
}

// rawIn serves requests with a query and a body of raw bytes.
func rawIn[T any](parse func(*query) T, serve func(*call, T) error) endpoint {
	return endpoint{body: bodyRaw, params: knownParams(parse), serve: func(c *call) error {
		in, err := readQuery(c.r.URL.RawQuery, parse)
		if err != nil {
			return err
		}
		if err := c.checkRawHeaders(); err != nil {
			return err
		}
		if err := c.readIdempotency(func() string { return rawHash(c.r) }); err != nil {
			return err
		}
		return serve(c, in)
	}}
}

// allowed lists the methods of a path for the Allow header.
func allowed(methods []route) string {
	var list string
	for i, rt := range methods {
		if i > 0 {
			list += ", "
		}
		list += rt.method
	}
	return list
}

// statusClientGone is logged when the client left before an answer; it is never sent.
const statusClientGone = 499

// takesKey tells whether requests of this method may carry an idempotency key.
func takesKey(method string) bool { return method == http.MethodPost }
