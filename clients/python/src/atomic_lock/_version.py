"""The version of the package: its first two numbers are those of the extension that it needs"""

VERSION = '1.0.0'
