package main_test

import "testing"

// TestProvidersPage runs the commands of PROVIDERS.md, with the routes file that it shows.
func TestProvidersPage(t *testing.T) {
	steps := pageSteps(t, "../processor/ingress/PROVIDERS.md", "")
	assertTwoSteps(t, steps, `{"id":"evt_1","created":1767225600}`)
}
