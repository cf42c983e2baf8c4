package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	sdk "dayfly.dev/dayfly/sdk/go"
)

const eventsLong = `Events tells what happened to a sandbox, or without an ID to all of yours, oldest first: accepted, running, extended, paused, resumed,
deleting, ended, each with its time, who did it and why. To an admin it tells everything: keys, reclaimed leftovers,
starts of the server. Events are kept for 30 days.

With --follow it goes on with what happens from then on: for one sandbox until its end, else until you interrupt it. A
connection that breaks is taken up again, so that each event comes once. --since leaves out what you know: give the
last number (SEQ) that you saw.

With -o json it prints {"data": [...]}; with --follow too, one JSON object a line.`

const eventsExample = `  dayfly events sb2c9x0q8d7k4m1n5p3r6t
  dayfly events --follow
  dayfly events --since 4711 -o json | jq -r '.data[] | select(.type == "sandbox.ended") | .sandbox + " " + .cause'`

func (a *app) eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "events [ID]", Short: "Tell what happened", Long: eventsLong, Example: eventsExample,
		Args: atMostOne, ValidArgsFunction: a.completeOneSandbox,
	}
	var o sdk.EventOptions
	f := cmd.Flags()
	f.BoolVarP(&o.Follow, "follow", "f", false, "go on with what happens")
	f.Int64Var(&o.After, "since", 0, "only events after the one of this number (`SEQ`)")
	cmd.RunE = a.do(func(cmd *cobra.Command, args []string) error {
		if o.After < 0 {
			return usagef("--since %d is no number of an event", o.After).at(cmd)
		}
		if len(args) > 0 {
			o.Sandbox = args[0]
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		show, finish := a.eventWriter(o.Follow)
		for e, err := range client.Events(cmd.Context(), o) {
			if err != nil {
				return err
			}
			if err := show(e); err != nil {
				return err
			}
		}
		return finish()
	})
	return cmd
}

// atMostOne takes one ID or none.
func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%q is one argument too many", args[1]).at(cmd)
	}
	return nil
}

// eventWriter gives what shows one event, and what ends the output.
func (a *app) eventWriter(follow bool) (show func(sdk.LifeEvent) error, finish func() error) {
	none := func() error { return nil }
	switch {
	case !a.json():
		begun := false
		return func(e sdk.LifeEvent) error {
			text := eventRow(e)
			if !begun {
				begun, text = true, eventHeads+text
			}
			_, err := io.WriteString(a.Stdout, text)
			return err
		}, none
	case follow:
		return func(e sdk.LifeEvent) error {
			line, err := json.Marshal(e)
			if err != nil {
				return err
			}
			_, err = a.Stdout.Write(append(line, '\n'))
			return err
		}, none
	}
	all := []sdk.LifeEvent{}
	return func(e sdk.LifeEvent) error {
		all = append(all, e)
		return nil
	}, func() error { return a.writeJSON(list[sdk.LifeEvent]{all}) }
}

// eventFormat has columns of fixed width, so that a row can be printed before the next one is known.
const eventFormat = "%-8s  %-24s  %-19s  %-22s  %-26s  %s\n"

var eventHeads = fmt.Sprintf(eventFormat, "SEQ", "TIME", "TYPE", "SANDBOX", "ACTOR", "CAUSE")

func eventRow(e sdk.LifeEvent) string {
	why := cell(e.Cause)
	if e.Message != "" {
		why = strings.TrimPrefix(why+" "+cell(e.Message), "- ")
	}
	return fmt.Sprintf(eventFormat, number(e.Seq), e.At.UTC().Format(eventTime), cell(string(e.Type)), cell(e.Sandbox), cell(e.Actor), why)
}

// eventTime shows milliseconds: what happens within one second has an order.
const eventTime = "2006-01-02T15:04:05.000Z07:00"
