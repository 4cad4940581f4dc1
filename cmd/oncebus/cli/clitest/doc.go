// Package clitest runs commands in the process of a test. Only tests import it.
package clitest
