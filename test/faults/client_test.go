package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"dayfly.dev/dayfly/test/host"
)

// callMax bounds one request: nothing here takes long, and a frozen server must not hold the round.
const callMax = 20 * time.Second

// client makes single requests: no retries, no kept connections, so that it sees what a crash does.
type client struct {
	s   *host.Server
	key string
}

// answer is what came, or err when the connection broke before the whole answer.
type answer struct {
	status int
	body   []byte
	err    error
}

// cut tells that nobody knows what became of the request, or that the server asks to try again.
func (a answer) cut() bool { return a.err != nil || a.status == 503 || a.status == 500 }

// into decodes the body.
func (a answer) into(v any) error {
	if a.err != nil {
		return a.err
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		return fmt.Errorf("answer %d %s: %w", a.status, a.body, err)
	}
	return nil
}

// String is for messages.
func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %.300s", a.status, a.body)
}

// record is a sandbox as the API shows it.
type record struct {
	ID        string            `json:"id"`
	Status    string            `json:"status"`
	Labels    map[string]string `json:"labels"`
	CreatedAt time.Time         `json:"created_at"`
	ExpiresAt time.Time         `json:"expires_at"`
	EndedAt   *time.Time        `json:"ended_at"`
	EndReason string            `json:"end_reason"`
	Replayed  bool              `json:"replayed"`
}

func (r record) ended() bool { return r.Status == "deleted" || r.Status == "failed" }

// do makes one request. once is its idempotency key or empty; body is text, bytes, or a value for JSON, or nil.
func (c client) do(method, path, once string, body any) answer {
	ctx, cancel := context.WithTimeout(context.Background(), callMax)
	defer cancel()
	var b []byte
	kind := "application/json"
	switch v := body.(type) {
	case nil:
	case []byte:
		b, kind = v, "application/octet-stream"
	default:
		b, _ = json.Marshal(v)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.s.URL+path, bytes.NewReader(b))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	if once != "" {
		req.Header.Set("Idempotency-Key", once)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, body: got, err: err}
}

// sandbox reads one record.
func (c client) sandbox(id string) (record, error) {
	var r record
	a := c.do("GET", "/v1/sandboxes/"+id, "", nil)
	if a.status != 200 {
		return r, fmt.Errorf("read %s: %s", id, a)
	}
	return r, a.into(&r)
}

// sandboxes reads all records that the query chooses.
func (c client) sandboxes(query string) ([]record, error) {
	var all []record
	for cursor := ""; ; {
		var page struct {
			Data []record `json:"data"`
			Next *string  `json:"next_cursor"`
		}
		path := "/v1/sandboxes?limit=100&" + query
		if cursor != "" {
			path += "&cursor=" + cursor
		}
		a := c.do("GET", path, "", nil)
		if a.status != 200 {
			return nil, fmt.Errorf("list: %s", a)
		}
		if err := a.into(&page); err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if page.Next == nil {
			return all, nil
		}
		cursor = *page.Next
	}
}
