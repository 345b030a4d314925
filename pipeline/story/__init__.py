"""The story of a throttle in words, for the terminal and the dashboard alike: functions of what the tables say."""
