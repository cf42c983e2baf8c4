// Package dayfly is the Go SDK of Dayfly: clean isolated machines that are guaranteed to disappear. It speaks the HTTP API
// of a Dayfly server and needs nothing but the standard library and, for terminals, one WebSocket library.
//
//	client, err := dayfly.New(dayfly.Options{})
//	sandbox, err := client.Create(ctx, dayfly.CreateOptions{Timeout: 15 * time.Minute})
//	defer sandbox.Delete(context.WithoutCancel(ctx))
//	result, err := sandbox.Exec(ctx, dayfly.Command("git --version"), dayfly.ExecOptions{Check: true})
//
// Every failure is an *Error with a stable code, or an *ExitError where a check was asked for; the caller's own cancelled
// context stays visible to errors.Is. Calls are repeated a bounded number of times where that is safe: every POST carries
// an idempotency key that stays the same over its repetitions.
//
// The package starts no server, keeps no state on disk and knows nothing of how a sandbox is made. To add a route, add a
// method to the file of its noun that builds one call and hands it to Client.do.
package dayfly
