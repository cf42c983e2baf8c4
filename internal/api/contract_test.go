package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"dayfly.dev/dayfly/internal/api"
)

const contractFile = "../../api/openapi.yaml"

// contract is the parsed api/openapi.yaml with its routes.
type contract struct {
	doc    *openapi3.T
	router routers.Router
	mu     sync.Mutex
	seen   map[string]bool // operation and status of every success that was checked
}

var theContract = sync.OnceValues(func() (*contract, error) {
	doc, err := openapi3.NewLoader().LoadFromFile(contractFile)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	doc.Servers = nil // any address
	router, err := gorillamux.NewRouter(doc)
	return &contract{doc: doc, router: router, seen: map[string]bool{}}, err
})

// TestMain checks after a whole run that every success of the contract was seen and valid.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if run := flag.Lookup("test.run"); code == 0 && run.Value.String() == "" && flag.Lookup("test.fuzz").Value.String() == "" {
		c, err := theContract()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for _, missing := range c.unseen() {
			fmt.Fprintln(os.Stderr, "no test has seen", missing)
			code = 1
		}
	}
	os.Exit(code)
}

func (c *contract) unseen() []string {
	var missing []string
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status := range op.Responses.Map() {
				if name := method + " " + path + " " + status; status != "default" && !c.seen[name] {
					missing = append(missing, name)
				}
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// checkContract holds an answer against the contract.
func checkContract(t *testing.T, req *http.Request, a answer) {
	t.Helper()
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile("^rq[a-z0-9]{20}$").MatchString(a.header.Get("X-Request-Id")) {
		t.Errorf("%s %s: X-Request-Id is %q", req.Method, req.URL.Path, a.header.Get("X-Request-Id"))
	}
	route, params, err := c.router.FindRoute(req)
	if err != nil { // unknown path or method: the envelope all the same
		if req.Method != http.MethodHead {
			c.visit(t, "Error", a.body)
		}
		return
	}
	c.mu.Lock()
	c.seen[fmt.Sprintf("%s %s %d", route.Method, route.Path, a.status)] = true
	c.mu.Unlock()
	kind, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	if late := bytes.TrimLeft(a.body, " "); len(late) < len(a.body) && bytes.HasPrefix(late, []byte(`{"error"`)) {
		c.visit(t, "Error", late) // after the head of success
		return
	}
	if a.status >= 400 && req.Method != http.MethodHead && route.Path != "/readyz" {
		c.visit(t, "Error", a.body)
	}
	if kind == "application/x-ndjson" || kind == "text/event-stream" {
		line := route.Operation.Responses.Status(a.status).Value.Content[kind].Schema
		for _, data := range events(t, a) {
			c.visit(t, strings.TrimPrefix(line.Ref, "#/components/schemas/"), data)
		}
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 a.status,
		Header:                 a.header,
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, MultiError: true,
			ExcludeResponseBody: kind != "application/json" || req.Method == http.MethodHead,
		},
	}
	err = openapi3filter.ValidateResponse(context.Background(), in.SetBodyBytes(a.body))
	if err != nil {
		t.Errorf("%s %s: the answer %d %.300s breaks the contract: %.400s", req.Method, req.URL.Path, a.status, a.body, err.Error())
	}
}

func (c *contract) visit(t *testing.T, schema string, data []byte) {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Errorf("%.300q is not JSON: %v", data, err)
		return
	}
	if err := c.doc.Components.Schemas[schema].Value.VisitJSON(v); err != nil {
		t.Errorf("%.300s is no %s: %.400s", data, schema, err.Error())
	}
}

// events are the JSON lines of a stream.
func events(t *testing.T, a answer) [][]byte {
	t.Helper()
	var out [][]byte
	lines := bufio.NewScanner(bytes.NewReader(a.body))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		line := bytes.TrimPrefix(lines.Bytes(), []byte("data: "))
		if len(line) > 0 && !bytes.HasPrefix(line, []byte("id: ")) {
			out = append(out, bytes.Clone(line))
		}
	}
	return out
}

func TestRoutesAndContractAgree(t *testing.T) {
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	inContract := map[string]*openapi3.Operation{}
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			inContract[method+" "+path] = op
		}
	}
	for _, rt := range api.RouteTable() {
		name := rt.Method + " " + rt.Path
		op := inContract[name]
		if op == nil {
			t.Errorf("the contract lacks %s", name)
			continue
		}
		delete(inContract, name)
		t.Run(name, func(t *testing.T) {
			checkBody(t, rt, op)
			checkParams(t, rt, op, c.doc.Paths.Value(rt.Path))
			if open := op.Security != nil && len(*op.Security) == 0; open != rt.Open {
				t.Errorf("needs no key: handler %v, contract %v", rt.Open, open)
			}
		})
	}
	for name := range inContract {
		t.Errorf("no handler serves %s", name)
	}
}

func checkBody(t *testing.T, rt api.RouteInfo, op *openapi3.Operation) {
	t.Helper()
	kind, fields := "none", []string{}
	if op.RequestBody != nil {
		kind = "raw"
		if content := op.RequestBody.Value.Content["application/json"]; content != nil {
			kind, fields = "json", properties("", content.Schema.Value)
		}
	}
	if kind != rt.Body {
		t.Errorf("body: handler %s, contract %s", rt.Body, kind)
	}
	sameNames(t, "fields", rt.Fields, fields)
}

func properties(prefix string, schema *openapi3.Schema) []string {
	var names []string
	for name, p := range schema.Properties {
		names = append(names, prefix+name)
		names = append(names, properties(prefix+name+".", p.Value)...)
	}
	return names
}

func checkParams(t *testing.T, rt api.RouteInfo, op *openapi3.Operation, item *openapi3.PathItem) {
	t.Helper()
	var query []string
	hasKey := false
	for _, p := range append(slices.Clone(item.Parameters), op.Parameters...) {
		if p.Value.In == "query" {
			query = append(query, p.Value.Name)
		}
		hasKey = hasKey || p.Value.Name == "Idempotency-Key"
	}
	sameNames(t, "query", rt.Params, query)
	if hasKey != (rt.Method == "POST") {
		t.Errorf("Idempotency-Key in the contract: %v", hasKey)
	}
}

func sameNames(t *testing.T, what string, handler, contract []string) {
	t.Helper()
	h, c := map[string]bool{}, map[string]bool{}
	for _, n := range handler {
		h[n] = true
	}
	for _, n := range contract {
		c[n] = true
	}
	if !maps.Equal(h, c) {
		t.Errorf("%s: the handler knows %v, the contract %v", what, slices.Sorted(maps.Keys(h)), slices.Sorted(maps.Keys(c)))
	}
}

func TestEveryErrorTypeHasAStatus(t *testing.T) {
	c, err := theContract()
	if err != nil {
		t.Fatal(err)
	}
	var inContract []string
	for _, v := range c.doc.Components.Schemas["ErrorObject"].Value.Properties["type"].Value.Enum {
		inContract = append(inContract, v.(string))
	}
	sameNames(t, "types", slices.Collect(maps.Keys(api.Statuses())), inContract)
}
