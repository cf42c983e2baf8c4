package dayfly

import "time"

// QuotaDefault is how many live sandboxes an account may have, save the first account, which has no limit.
const QuotaDefault = 100

// Account owns sandboxes. One never sees another's.
type Account struct {
	ID        string
	Name      string
	Admin     bool // may manage keys, accounts and images
	MaxLive   int  // live sandboxes at once; 0 means no limit
	CreatedAt time.Time
}

// Key is an API key without its secret. Secrets are hashed at rest and shown once.
type Key struct {
	ID        string
	Account   string // account id
	Name      string // of the account, for people
	Admin     bool
	Hash      string // hex sha256 of the secret
	Hint      string // last four characters of the secret
	CreatedAt time.Time
}
