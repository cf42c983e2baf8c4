package dayfly

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// Key is an API key. Its secret is shown once, by CreateKey.
type Key struct {
	ID        string     `json:"id"`
	Account   string     `json:"account"` // name
	AccountID string     `json:"account_id"`
	Admin     bool       `json:"admin"`
	Secret    string     `json:"secret,omitempty"`
	Hint      string     `json:"hint"` // last characters of the secret
	CreatedAt *time.Time `json:"created_at"`
}

// Account owns sandboxes.
type Account struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	MaxLive   int        `json:"max_live"` // 0 means no limit
	CreatedAt *time.Time `json:"created_at"`
}

// CreateKey makes a key for an account, and the account too if there is none of that name. Only an admin key may. A retry
// whose first answer was lost gives the key without its secret.
func (c *Client) CreateKey(ctx context.Context, account string, admin bool) (Key, error) {
	var k Key
	body := struct {
		Account string `json:"account"`
		Admin   bool   `json:"admin"`
	}{account, admin}
	if err := checkText(texts{"account": {account}}); err != nil {
		return k, err
	}
	err := c.do(ctx, call{method: http.MethodPost, path: "/v1/keys", json: body}, &k)
	return k, err
}

// Keys goes through the keys that this key may see.
func (c *Client) Keys(ctx context.Context) iter.Seq2[Key, error] {
	return pages[Key](ctx, c, "/v1/keys", nil, pageSize)
}

// DeleteKey revokes a key at once. The last admin key cannot be removed: CodeConflict.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/keys/" + segment(id)}, nil)
}

// Accounts goes through the accounts that this key may see.
func (c *Client) Accounts(ctx context.Context) iter.Seq2[Account, error] {
	return pages[Account](ctx, c, "/v1/accounts", nil, pageSize)
}
