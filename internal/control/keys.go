package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// Keys look like dfk_ and 40 characters of [a-z0-9].
const (
	secretPrefix = "dfk_"
	hintLength   = 4
)

// FirstAccount is the name of the account that the first start of a server makes.
const FirstAccount = "admin"

var errUnauthorized = dayfly.Errorf(dayfly.CodeUnauthorized, "this API key is not valid").
	WithHint("send `Authorization: Bearer dfk_…`; the first key is in the file admin.key of the server's data directory")

// Authenticate finds who a secret belongs to. CodeUnauthorized: nobody; CodeUnavailable: the server is still starting.
func (p *Plane) Authenticate(ctx context.Context, secret string) (Principal, error) {
	if p.in(phaseStarting) {
		return Principal{}, errStarting
	}
	if !strings.HasPrefix(secret, secretPrefix) {
		return Principal{}, errUnauthorized
	}
	hash := hashSecret(secret)
	who, ok, since := p.principals.recall(hash)
	if ok {
		return who, nil
	}
	key, acc, err := p.store.KeyByHash(ctx, hash)
	if dayfly.ErrorCode(err) == dayfly.CodeUnauthorized {
		return Principal{}, errUnauthorized
	}
	who = Principal{Account: acc, Key: key}
	if err == nil {
		p.principals.note(hash, who, since)
	}
	return who, err
}

// CreateKey makes a key for the principal's account, or, for an admin, for any account, which is made with its first key.
func (p *Plane) CreateKey(ctx context.Context, who Principal, r NewKey) (IssuedKey, error) {
	if err := mustAdmin(who, r.Account != "" && r.Account != who.Account.Name || r.Admin); err != nil {
		return IssuedKey{}, err
	}
	name := r.Account
	if name == "" {
		name = who.Account.Name
	}
	return p.issueKey(dayfly.WithActor(ctx, who.actor()), name, r.Admin)
}

// IssueAdminKey makes an admin key of the first account, for the first start and for a lost key.
func (p *Plane) IssueAdminKey(ctx context.Context) (IssuedKey, error) {
	return p.issueKey(ctx, FirstAccount, true)
}

func (p *Plane) issueKey(ctx context.Context, account string, admin bool) (IssuedKey, error) {
	now := p.Now().Wall.UTC()
	secret := secretPrefix + dayfly.NewID("") + dayfly.NewID("")
	key := dayfly.Key{
		ID: dayfly.NewID(dayfly.PrefixKey), Name: account, Admin: admin,
		Hash: hashSecret(secret), Hint: secret[len(secret)-hintLength:], CreatedAt: now,
	}
	fresh := dayfly.Account{ID: dayfly.NewID(dayfly.PrefixAccount), Name: account, MaxLive: p.cfg.MaxLive, CreatedAt: now}
	if account == FirstAccount {
		fresh.ID, fresh.MaxLive = p.firstAccountID(), 0
	}
	failpoint.Hit("control.key.begin")
	acc, err := p.store.CreateKey(ctx, fresh, key)
	if err != nil {
		return IssuedKey{}, err
	}
	failpoint.Hit("control.key.recorded")
	key.Account, key.Name = acc.ID, acc.Name
	p.tell(ctx, dayfly.Event{Account: acc.ID, Type: dayfly.EventKeyMade, Cause: key.ID})
	return IssuedKey{Key: key, Secret: secret}, nil
}

// firstAccountID is the same after the loss of the database, so that the sandboxes that are then adopted still belong to
// the first account: it takes the characters of the node's id, which is kept in a file of its own.
func (p *Plane) firstAccountID() string {
	id := p.node.ID()
	if !dayfly.ValidID(dayfly.PrefixNode, id) {
		return dayfly.NewID(dayfly.PrefixAccount)
	}
	return string(dayfly.PrefixAccount) + strings.TrimPrefix(id, string(dayfly.PrefixNode))
}

// Keys lists the account's keys; an admin sees all.
func (p *Plane) Keys(ctx context.Context, who Principal) ([]dayfly.Key, error) {
	return p.store.Keys(ctx, keyScope(who))
}

// RemoveKey removes one of the account's keys; an admin may remove any. CodeConflict: it is the last admin key.
func (p *Plane) RemoveKey(ctx context.Context, who Principal, id string) error {
	ctx = dayfly.WithActor(ctx, who.actor())
	err := p.store.RemoveKey(ctx, keyScope(who), id)
	p.principals.forgetAll()
	if err != nil {
		return err
	}
	p.tell(ctx, dayfly.Event{Account: who.Account.ID, Type: dayfly.EventKeyRemoved, Cause: id})
	return nil
}

// Accounts lists all accounts, to an admin.
func (p *Plane) Accounts(ctx context.Context, who Principal) ([]dayfly.Account, error) {
	if err := mustAdmin(who, true); err != nil {
		return nil, err
	}
	return p.store.Accounts(ctx)
}

func keyScope(who Principal) string {
	if who.Key.Admin {
		return ""
	}
	return who.Account.ID
}

func mustAdmin(who Principal, needed bool) error {
	if needed && !who.Key.Admin {
		return dayfly.Errorf(dayfly.CodeForbidden, "this needs an admin key").
			WithHint("the first admin key is in the file admin.key of the server's data directory")
	}
	return nil
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
