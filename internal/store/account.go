package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"dayfly.dev/dayfly"
)

const (
	accountColumns   = "a.id, a.name, a.admin, a.max_live, a.created_at"
	keyColumns       = "k.id, k.account, a.name, k.admin, k.hash, k.hint, k.created_at"
	fromKeys         = " FROM api_keys AS k JOIN accounts AS a ON a.id = k.account "
	sqlAccount       = "SELECT " + accountColumns + " FROM accounts AS a WHERE a.id = $1"
	sqlAccountNamed  = "SELECT " + accountColumns + " FROM accounts AS a WHERE a.name = $1"
	sqlAccounts      = "SELECT " + accountColumns + " FROM accounts AS a ORDER BY a.created_at, a.id"
	sqlInsertAccount = "INSERT INTO accounts (id, name, admin, max_live, created_at) VALUES ($1, $2, $3, $4, $5)"
	sqlInsertKey     = "INSERT INTO api_keys (id, account, admin, hash, hint, created_at) VALUES ($1, $2, $3, $4, $5, $6)"
	sqlKeyByHash     = "SELECT " + keyColumns + ", " + accountColumns + fromKeys + "WHERE k.hash = $1"
	sqlKeys          = "SELECT " + keyColumns + fromKeys + "ORDER BY k.created_at, k.id"
	sqlKeysOf        = "SELECT " + keyColumns + fromKeys + "WHERE k.account = $1 ORDER BY k.created_at, k.id"
	sqlKey           = "SELECT k.account, k.admin FROM api_keys AS k WHERE k.id = $1"
	sqlOtherAdmins   = "SELECT count(*) FROM api_keys WHERE admin = $1 AND id <> $2"
	sqlRemoveKey     = "DELETE FROM api_keys WHERE id = $1"
)

// CreateKey implements dayfly.Store. CodeConflict: the id or the secret is in use.
func (db *DB) CreateKey(ctx context.Context, acc dayfly.Account, key dayfly.Key) (dayfly.Account, error) {
	if acc.Name == "" || !storable(acc.Name) || key.ID == "" || key.Hash == "" {
		return dayfly.Account{}, dayfly.Errorf(dayfly.CodeInvalid, "a key needs an id, a hash and an account's name")
	}
	var stored dayfly.Account
	err := db.writeDurable(ctx, func(t tx) error {
		var err error
		if stored, err = t.ensureAccount(acc); err != nil {
			return err
		}
		_, err = t.exec(sqlInsertKey, key.ID, stored.ID, key.Admin, key.Hash, key.Hint, micros(key.CreatedAt))
		if err != nil && t.d.kind(err) == failUnique {
			return dayfly.Errorf(dayfly.CodeConflict, "there is such a key already").WithCause(err)
		}
		return err
	})
	if err != nil {
		return dayfly.Account{}, err
	}
	return stored, nil
}

// ensureAccount finds the account of that name or makes it.
func (t tx) ensureAccount(acc dayfly.Account) (dayfly.Account, error) {
	found, err := t.account(sqlAccountNamed, acc.Name)
	if dayfly.ErrorCode(err) != dayfly.CodeNotFound {
		return found, err
	}
	if acc.ID == "" {
		return dayfly.Account{}, dayfly.Errorf(dayfly.CodeInvalid, "a new account needs an id")
	}
	_, err = t.exec(sqlInsertAccount, acc.ID, acc.Name, acc.Admin, acc.MaxLive, micros(acc.CreatedAt))
	if err != nil && t.d.kind(err) == failUnique {
		return dayfly.Account{}, dayfly.Errorf(dayfly.CodeConflict, "there is an account %s already", acc.ID).WithCause(err)
	}
	if err != nil {
		return dayfly.Account{}, fmt.Errorf("store the account: %w", err)
	}
	acc.CreatedAt = wall(micros(acc.CreatedAt))
	return acc, nil
}

// KeyByHash implements dayfly.Store.
func (db *DB) KeyByHash(ctx context.Context, hash string) (dayfly.Key, dayfly.Account, error) {
	var key dayfly.Key
	var acc dayfly.Account
	err := db.read(ctx, func(t tx) error {
		var keyMade, accMade int64
		err := t.one(sqlKeyByHash, []any{hash}, append(keyFields(&key, &keyMade), accountFields(&acc, &accMade)...)...)
		if errors.Is(err, sql.ErrNoRows) {
			return dayfly.Errorf(dayfly.CodeUnauthorized, "the API key is not valid").
				WithHint("use a key that `dayfly keys create` printed; it may have been removed")
		}
		key.CreatedAt, acc.CreatedAt = wall(keyMade), wall(accMade)
		return err
	})
	if err != nil {
		return dayfly.Key{}, dayfly.Account{}, err
	}
	return key, acc, nil
}

// Keys implements dayfly.Store.
func (db *DB) Keys(ctx context.Context, account string) (keys []dayfly.Key, err error) {
	err = db.read(ctx, func(t tx) (err error) {
		if account == "" {
			keys, err = all(t, scanKey, sqlKeys)
		} else {
			keys, err = all(t, scanKey, sqlKeysOf, account)
		}
		return err
	})
	return keys, err
}

// RemoveKey implements dayfly.Store.
func (db *DB) RemoveKey(ctx context.Context, account, id string) error {
	return db.writeDurable(ctx, func(t tx) error {
		var owner string
		var admin bool
		err := t.one(sqlKey+t.d.lockRow, []any{id}, &owner, &admin)
		if errors.Is(err, sql.ErrNoRows) || err == nil && account != "" && owner != account {
			return dayfly.Errorf(dayfly.CodeNotFound, "there is no key %q", id).WithHint("list keys to see their ids")
		}
		if err != nil {
			return fmt.Errorf("find the key: %w", err)
		}
		if admin {
			var others int
			if err := t.one(sqlOtherAdmins, []any{true /* admin */, id}, &others); err != nil {
				return fmt.Errorf("count admin keys: %w", err)
			}
			if others == 0 {
				return dayfly.Errorf(dayfly.CodeConflict, "the last admin key cannot be removed").
					WithHint("create another admin key first")
			}
		}
		_, err = t.exec(sqlRemoveKey, id)
		return err
	})
}

// Accounts implements dayfly.Store.
func (db *DB) Accounts(ctx context.Context) (accounts []dayfly.Account, err error) {
	err = db.read(ctx, func(t tx) (err error) {
		accounts, err = all(t, scanAccount, sqlAccounts)
		return err
	})
	return accounts, err
}

// Account implements dayfly.Store.
func (db *DB) Account(ctx context.Context, id string) (acc dayfly.Account, err error) {
	err = db.read(ctx, func(t tx) (err error) {
		acc, err = t.account(sqlAccount, id)
		return err
	})
	return acc, err
}

func (t tx) account(query, ref string) (dayfly.Account, error) {
	st, err := t.s.stmt(t.ctx, query)
	if err != nil {
		return dayfly.Account{}, err
	}
	acc, err := scanAccount(st.QueryRowContext(t.ctx, ref))
	if errors.Is(err, sql.ErrNoRows) {
		return dayfly.Account{}, dayfly.Errorf(dayfly.CodeNotFound, "there is no account %q", ref)
	}
	return acc, err
}

func accountFields(a *dayfly.Account, created *int64) []any {
	return []any{&a.ID, &a.Name, &a.Admin, &a.MaxLive, created}
}

func scanAccount(row scanner) (dayfly.Account, error) {
	var a dayfly.Account
	var created int64
	if err := row.Scan(accountFields(&a, &created)...); err != nil {
		return dayfly.Account{}, err
	}
	a.CreatedAt = wall(created)
	return a, nil
}

func keyFields(k *dayfly.Key, created *int64) []any {
	return []any{&k.ID, &k.Account, &k.Name, &k.Admin, &k.Hash, &k.Hint, created}
}

func scanKey(row scanner) (dayfly.Key, error) {
	var k dayfly.Key
	var created int64
	if err := row.Scan(keyFields(&k, &created)...); err != nil {
		return dayfly.Key{}, err
	}
	k.CreatedAt = wall(created)
	return k, nil
}
