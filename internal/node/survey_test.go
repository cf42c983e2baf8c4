package node_test

import (
	"context"
	"testing"
	"time"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/node"
)

func TestSurvey(t *testing.T) {
	const live, ending, fresh, old, paused = "live", "ending", "fresh", "old", "paused"
	records := []dayfly.Sandbox{
		{ID: live, Status: dayfly.StatusRunning}, {ID: ending, Status: dayfly.StatusDeleting}, {ID: paused, Status: dayfly.StatusPaused},
		{ID: "starting", Status: dayfly.StatusProvisioning},
	}
	ago := func(id string) (time.Duration, bool) {
		switch id {
		case fresh:
			return 4 * time.Second, true
		case old:
			return 5 * time.Second, true
		}
		return 0, false
	}
	source := func(kind string, owners ...string) node.Source {
		return node.Source{Kind: kind, List: func(context.Context) ([]node.Object, error) {
			var out []node.Object
			for _, o := range owners {
				out = append(out, node.Object{Name: kind + " of " + o, Owner: o})
			}
			return out, nil
		}}
	}
	for _, tt := range []struct {
		name    string
		sources []node.Source
		want    map[string]node.ObjectState // by name
	}{
		{"all is well", []node.Source{source(node.KindMachine, live, paused), source("disk", live)},
			map[string]node.ObjectState{"machine of live": "owned", "machine of paused": "owned", "disk of live": "owned"}},
		{"recorded, not there", []node.Source{source(node.KindMachine), source("disk", live)},
			map[string]node.ObjectState{"live": "missing", "paused": "missing", "disk of live": "owned"}},
		{"there, not recorded", []node.Source{source(node.KindMachine, live, paused, "stray", ""), source("network", old)},
			map[string]node.ObjectState{
				"machine of live": "owned", "machine of paused": "owned", "machine of stray": "unaccounted", "machine of ": "unaccounted",
				"network of old": "unaccounted",
			}},
		{"on its way out", []node.Source{source(node.KindMachine, live, paused, ending), source("network", fresh)},
			map[string]node.ObjectState{
				"machine of live": "owned", "machine of paused": "owned", "machine of ending": "reclaiming", "network of fresh": "reclaiming",
			}},
		{"the installation's", []node.Source{source(node.KindMachine, live, paused), source("mount", node.OwnerInstallation)},
			map[string]node.ObjectState{"machine of live": "owned", "machine of paused": "owned", "mount of installation": "owned"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found, err := node.Survey(t.Context(), tt.sources, records, ago)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]node.ObjectState{}
			for _, o := range found {
				got[o.Name] = o.State
			}
			for name, state := range tt.want {
				if got[name] != state {
					t.Errorf("%s is %q, want %q", name, got[name], state)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("found %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("could not look", func(t *testing.T) {
		blind := node.Source{Kind: "disk", List: func(context.Context) ([]node.Object, error) { return nil, errTest }}
		if found, err := node.Survey(t.Context(), []node.Source{source(node.KindMachine, live), blind}, records, ago); err == nil {
			t.Errorf("Survey = %v", found)
		}
	})
}
