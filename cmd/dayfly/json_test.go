package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"dayfly.dev/dayfly/internal/cli"
	"dayfly.dev/dayfly/internal/node"
)

// What scripts read must be there always, also when there is nothing to tell.
func TestJSONHasEveryField(t *testing.T) {
	cfg := config{Data: t.TempDir()}
	for _, tt := range []struct {
		name  string
		print func(cmd *cobra.Command) error
		want  []string
	}{
		{"audit", func(cmd *cobra.Command) error { return printAudit(cmd, nil, nil) }, []string{"counts", "objects", "unaccounted"}},
		{"doctor", func(cmd *cobra.Command) error { return report(cmd, []finding{ok("root", "yes")}) }, []string{"checks"}},
		{"status", func(cmd *cobra.Command) error { return printServer(cmd, cfg) }, []string{"data", "degraded", "key_file", "pid", "problems", "running", "url", "version"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := &cobra.Command{Use: tt.name, RunE: func(cmd *cobra.Command, _ []string) error { return tt.print(cmd) }}
			cmd.Flags().StringP(cli.FlagOutput, "o", "text", "")
			cmd.SetOut(&out)
			cmd.SetArgs([]string{"-o", "json"})
			if err := cmd.Execute(); err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%v in %s", err, out.String())
			}
			var names []string
			for name, value := range got {
				if value == nil {
					t.Errorf("%s is null", name)
				}
				names = append(names, name)
			}
			if slices.Sort(names); !slices.Equal(names, tt.want) {
				t.Errorf("fields %v, want %v", names, tt.want)
			}
			if counts, ok := got["counts"].(map[string]any); tt.name == "audit" && (!ok || len(counts) != 4) {
				t.Errorf("counts %v, want every state", got["counts"])
			}
		})
	}
}

// An audit that found something exits 1, in both formats.
func TestAuditFails(t *testing.T) {
	for _, state := range []node.ObjectState{node.ObjectUnaccounted, node.ObjectMissing} {
		cmd := &cobra.Command{Use: "audit"}
		cmd.Flags().StringP(cli.FlagOutput, "o", "text", "")
		cmd.SetOut(new(bytes.Buffer))
		if err := printAudit(cmd, []node.Object{{Name: "x", State: state}}, nil); err != cli.ErrSaid {
			t.Errorf("%s: error %v", state, err)
		}
	}
}
