package api

import (
	"context"
	"net/http"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/control"
)

// keyJSON is an API key as clients see it. The secret is there only in the answer to its creation.
type keyJSON struct {
	ID        string `json:"id"`
	Account   string `json:"account"` // name
	AccountID string `json:"account_id"`
	Admin     bool   `json:"admin"`
	Secret    string `json:"secret,omitempty"`
	Hint      string `json:"hint"`
	CreatedAt string `json:"created_at"`
}

func showKey(k dayfly.Key) keyJSON {
	return keyJSON{ID: k.ID, Account: k.Name, AccountID: k.Account, Admin: k.Admin, Hint: k.Hint, CreatedAt: stamp(k.CreatedAt)}
}

func parseNewKey(f *fields) control.NewKey {
	var k control.NewKey
	k.Account, _ = f.name("account")
	k.Admin, _ = f.flag("admin")
	return k
}

func createKey(c *call, k control.NewKey) error {
	return c.once(func(ctx context.Context) (control.Answer, error) {
		issued, err := c.backend.CreateKey(ctx, c.who, k)
		if err != nil {
			return control.Answer{}, err
		}
		shown := showKey(issued.Key)
		answer, err := kept(http.StatusCreated, shown) // without the secret
		if err != nil {
			return answer, err
		}
		shown.Secret = issued.Secret
		answer.Body, err = encode(shown)
		return answer, err
	}, nil)
}

func listKeys(c *call, p paging) error {
	keys, err := c.backend.Keys(c.ctx(), c.who)
	if err != nil {
		return err
	}
	return answerPage(c, p, keys, func(k dayfly.Key) string { return stamp(k.CreatedAt) + k.ID }, showKey)
}

// removedJSON answers the removal of a key or an image.
type removedJSON struct {
	ID      string `json:"id"`
	Removed bool   `json:"removed"`
}

func removeKey(c *call, _ struct{}) error {
	id := c.r.PathValue("id")
	if !dayfly.ValidID(dayfly.PrefixKey, id) {
		return dayfly.Errorf(dayfly.CodeNotFound, "there is no such key").WithHint("GET /v1/keys lists them")
	}
	if err := c.backend.RemoveKey(c.ctx(), c.who, id); err != nil {
		return err
	}
	return c.answer(http.StatusOK, removedJSON{ID: id, Removed: true})
}

// accountJSON is an account as clients see it.
type accountJSON struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	MaxLive   *int   `json:"max_live"` // null: no limit
	CreatedAt string `json:"created_at"`
}

func showAccount(a dayfly.Account) accountJSON {
	out := accountJSON{ID: a.ID, Name: a.Name, CreatedAt: stamp(a.CreatedAt)}
	if a.MaxLive > 0 {
		out.MaxLive = &a.MaxLive
	}
	return out
}

func listAccounts(c *call, p paging) error {
	accounts, err := c.backend.Accounts(c.ctx(), c.who)
	if err != nil {
		return err
	}
	return answerPage(c, p, accounts, func(a dayfly.Account) string { return stamp(a.CreatedAt) + a.ID }, showAccount)
}
