package cleanup_test

import (
	"slices"
	"testing"

	"dayfly.dev/dayfly/internal/cleanup"
)

func TestStack(t *testing.T) {
	for _, tt := range []struct {
		name    string
		release bool
		want    []int
	}{
		{"failure undoes in reverse", false, []int{3, 2, 1}},
		{"success undoes nothing", true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []int
			s := cleanup.Make(func() { got = append(got, 1) })
			s.Add(func() { got = append(got, 2) })
			s.Add(func() { got = append(got, 3) })
			if tt.release {
				s.Release()
			}
			s.Clean()
			s.Clean() // the second run does nothing
			if !slices.Equal(got, tt.want) {
				t.Errorf("undone = %v, want %v", got, tt.want)
			}
		})
	}
}
