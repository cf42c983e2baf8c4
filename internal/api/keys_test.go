package api_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	b := newBed(t, nil)
	made := b.json("POST", "/v1/keys", `{"account":"team"}`, "Idempotency-Key", "k").ok(t, 201)
	golden(t, "key", made.body)
	again := b.json("POST", "/v1/keys", `{"account":"team"}`, "Idempotency-Key", "k").ok(t, 201)
	if v := again.json(t); v["secret"] != nil || v["replayed"] != true || v["id"] != made.json(t)["id"] {
		t.Errorf("replay: %v", v)
	}
	if strings.Contains(b.log.String(), made.json(t)["secret"].(string)) {
		t.Error("the log holds the secret")
	}
	team := *b
	team.key = made.json(t)["secret"].(string)
	own := team.json("POST", "/v1/keys", ``).ok(t, 201).json(t)
	if own["account"] != "team" || own["admin"] != false {
		t.Errorf("own key: %v", own)
	}
	team.json("POST", "/v1/keys", `{"admin":true}`).want(t, 403, "forbidden")
	team.json("POST", "/v1/keys", `{"account":"x y","admin":"yes","z":1}`).want(t, 400, "invalid_request")
	if got := len(team.get("/v1/keys").ok(t, 200).json(t)["data"].([]any)); got != 2 {
		t.Errorf("the team lists %d keys", got)
	}
	if strings.Contains(string(b.get("/v1/keys").body), "secret") {
		t.Error("a list shows secrets")
	}
	golden(t, "accounts", b.get("/v1/accounts").ok(t, 200).body)
	seen, cursor := 0, ""
	for { // deleting while iterating visits each once
		page := team.get("/v1/keys?limit=1"+cursor).ok(t, 200).json(t)
		for _, k := range page["data"].([]any) {
			seen++
			if id := k.(map[string]any)["id"].(string); id != made.json(t)["id"] {
				golden(t, "key_removed", b.send("DELETE", "/v1/keys/"+id, nil).ok(t, 200).body)
			}
		}
		if page["next_cursor"] == nil {
			break
		}
		cursor = "&cursor=" + page["next_cursor"].(string)
	}
	if seen != 2 {
		t.Errorf("visited %d keys", seen)
	}
	team.get("/v1/keys?cursor=!").want(t, 400, "invalid_request")
	b.send("DELETE", "/v1/keys/"+made.json(t)["id"].(string), nil).ok(t, 200)
	team.get("/v1/keys").want(t, 401, "unauthorized")
	var admin string
	for _, k := range b.get("/v1/keys").json(t)["data"].([]any) {
		admin = k.(map[string]any)["id"].(string)
	}
	b.send("DELETE", "/v1/keys/"+admin, nil).want(t, 409, "conflict")
}

func TestImages(t *testing.T) {
	b := newBed(t, nil)
	query := "/v1/images?name=py:3.12&user=dev&workdir=/srv&env=A%3D1&env=TOKEN%3Dsecret-value"
	made := b.send("POST", query, strings.NewReader("a tar"), "Idempotency-Key", "i").ok(t, 201)
	golden(t, "image", made.body)
	if got := b.send("POST", query, strings.NewReader("a tar"), "Idempotency-Key", "i").ok(t, 201).json(t); got["replayed"] != true || got["id"] != made.json(t)["id"] {
		t.Errorf("replay: %v", got)
	}
	if strings.Contains(string(made.body)+b.log.String(), "secret-value") {
		t.Error("an env value is shown")
	}
	for query, field := range map[string]string{
		"": "name", "name=": "name", "name=a/b": "name", "name=x&env=A": "env", "name=x&env=%3Dv": "env", "name=x&workdir=rel": "workdir",
		"name=x&user=": "user", "name=x&tag=1": "tag",
	} {
		if got := b.send("POST", "/v1/images?"+query, strings.NewReader("x")).want(t, 400, "invalid_request").fields(t); got[field] == "" {
			t.Errorf("?%s names %v", query, got)
		}
	}
	b.json("POST", "/v1/images?name=x", `{"name":"x"}`).want(t, 415, "unsupported_media_type")
	if got := len(b.get("/v1/images").ok(t, 200).json(t)["data"].([]any)); got != 2 {
		t.Errorf("lists %d images", got)
	}
	b.get("/v1/images/py:3.12").ok(t, 200)
	b.get(fmt.Sprintf("/v1/images/%s", made.json(t)["id"])).ok(t, 200)
	b.sandbox(`{"image":"py:3.12"}`)
	b.send("DELETE", "/v1/images/py:3.12", nil).want(t, 409, "conflict")
	b.send("POST", "/v1/images?name=spare", strings.NewReader("x")).ok(t, 201)
	golden(t, "image_removed", b.send("DELETE", "/v1/images/spare", nil).ok(t, 200).body)
}
