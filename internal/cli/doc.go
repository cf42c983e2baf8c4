// Package cli is the command line of Dayfly: run, create, ls, show, exec, sh, attach, ps, logs, wait, kill, cp, files,
// extend, pause, resume, rm, events, keys, images, bench, version and completion. It sees a server only through sdk/go and knows nothing of how one works; commands that start or inspect the
// server itself are handed in by the program through Options.Extra.
//
// Exit codes: 0 success, 1 a failure, 2 a wrong use, and in run, exec, sh and attach the command's own code, or 125 for a wrong use or a
// failure of Dayfly. To add a command, write a function that returns a *cobra.Command with Use, Short, Long and Example and whose RunE
// goes through app.do, and list it in Root.
package cli
